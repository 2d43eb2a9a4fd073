"""All traffic with the API server."""
