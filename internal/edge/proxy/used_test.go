package proxy

import (
	"net/http/httptest"
	"testing"
)

func TestChanges(t *testing.T) {
	for _, c := range []struct {
		method, path    string
		port            int
		change, command bool
	}{
		{"POST", "/process.Process/Start", 49983, true, true},
		{"POST", "/process.Process/List", 49983, false, false},
		{"POST", "/filesystem.Filesystem/Move", 49983, true, false},
		{"POST", "/filesystem.Filesystem/Stat", 49983, false, false},
		{"GET", "/files", 49983, false, false},
		{"POST", "/files", 49983, true, false},
		{"POST", "/files/compose", 49983, true, false},
		{"GET", "/files/tar", 49983, false, false},
		{"POST", "/files/tar", 49983, true, false},
		{"PUT", "/files/tar", 49983, true, false}, // does the same as POST
		{"POST", "/execute", 49999, true, true},
		{"GET", "/execute", 49999, false, false},
		{"POST", "/files", 3000, false, false},
	} {
		change, command := changes(httptest.NewRequest(c.method, "http://x"+c.path, nil), c.port)
		if change != c.change || command != c.command {
			t.Errorf("%s %s on %d: change %v, command %v", c.method, c.path, c.port, change, command)
		}
	}
}
