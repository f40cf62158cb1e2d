// Package join connects a program's input and output with a Unix socket, inside
// the sandbox and as whom the program runs: who asks for it reaches what a shell
// would reach.
package join

import (
	"io"
	"net"
)

// Socket carries what it reads from in to the socket and what the socket says to
// out, until the socket has no more to say.
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
		_ = conn.CloseWrite() // what it has still to say is waited for
	}()
	_, err = io.Copy(out, conn)
	return err
}
