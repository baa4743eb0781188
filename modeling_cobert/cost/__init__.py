"""What systems cost, in multiply-accumulates."""
