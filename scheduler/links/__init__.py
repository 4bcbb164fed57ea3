"""Messages with arrays between processes of one host, by sockets and shared memory."""
