"""`diffbatch bench`: one job under several layouts, each as a launch of its own. No torch."""
