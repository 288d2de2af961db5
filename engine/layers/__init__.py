"""Building blocks of models: plain objects that hold weights and are called with activations."""
