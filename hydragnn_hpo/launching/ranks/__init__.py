"""What each rank of a job finds when it starts, whoever starts it. Pure."""
