"""The engine that ends each call with gRPC and makes it anew."""
