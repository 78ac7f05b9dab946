"""HTTP/2: frames, header blocks, flow control; what the relay and our own client (`criproxy.clients.http2`) share."""
