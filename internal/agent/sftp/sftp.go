// Package sftp serves files over a connection in SSH's file transfer protocol,
// inside the sandbox and as whom the process runs: who speaks it is trusted
// with no more than a shell is, and nothing of it is parsed on the host.
package sftp

import (
	"errors"
	"io"

	"github.com/pkg/sftp"
)

// Serve answers requests until the other side has no more. Relative paths
// begin at home.
func Serve(rw io.ReadWriteCloser, home string) error {
	server, err := sftp.NewServer(rw, sftp.WithServerWorkingDirectory(home))
	if err != nil {
		return err
	}
	err = server.Serve()
	if closed := server.Close(); err == nil || errors.Is(err, io.EOF) {
		err = closed
	}
	return err
}
