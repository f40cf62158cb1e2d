package join_test

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/inside/agent/join"
)

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		all, _ := io.ReadAll(c) // answers when the caller has ended
		_, _ = c.Write(bytes.ToUpper(all))
	}()
	sent := strings.Repeat("abc", 100_000)
	var got bytes.Buffer
	if err := join.Socket(path, strings.NewReader(sent), &got); err != nil || got.String() != strings.ToUpper(sent) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if err := join.Socket(path+"x", strings.NewReader(""), &got); err == nil {
		t.Error("a socket that is not there was joined")
	}
}
