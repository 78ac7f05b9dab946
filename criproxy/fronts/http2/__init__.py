"""HTTP/2: frames, header blocks, flow control, and a small client; what the relay and the client share."""
