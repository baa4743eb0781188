"""What a trained model does: explanation and stability."""
