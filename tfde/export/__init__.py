"""From a trained model and its index to the SavedModels and files that are deployed."""
