"""What `fedmef flower new` copies: a Flower app. The files in `app/` are copied as they are."""
