"""What training adds to Hugging Face's Trainer."""
