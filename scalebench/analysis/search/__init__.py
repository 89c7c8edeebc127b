"""What measured runs tell a search: how fast a rank computes, and how far its models are off."""
