"""The declaration of every setting of the daemon."""
