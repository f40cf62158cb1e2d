// Package sftp serves files over a connection in SSH's file transfer protocol,
// inside the sandbox and under the process's account: its client is trusted
// with no more than a shell is, and nothing of it is parsed on the host.
package sftp

import (
	"errors"
	"io"

	"github.com/pkg/sftp"
)

// Serve answers requests until the other side has no more. Relative paths begin
// where the process does; links keep the target that they are given, which is
// why the server is not told of a directory of its own.
func Serve(rw io.ReadWriteCloser) error {
	server, err := sftp.NewServer(rw)
	if err != nil {
		return err
	}
	err = server.Serve()
	if closed := server.Close(); err == nil || errors.Is(err, io.EOF) {
		err = closed
	}
	return err
}
