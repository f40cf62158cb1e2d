// Package join connects a program's input and output with a Unix socket, inside
// the sandbox and under the program's account: its caller reaches the sockets
// that a shell would reach.
package join

import (
	"io"
	"net"
)

// Socket carries the bytes of in to the socket and those of the socket to out,
// until the socket ends.
func Socket(path string, in io.Reader, out io.Writer) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		if _, err := io.Copy(conn, in); err != nil {
			conn.Close()
			return
		}
		_ = conn.CloseWrite() // the rest of its answer is waited for
	}()
	_, err = io.Copy(out, conn)
	return err
}
