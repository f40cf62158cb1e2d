package server

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/operator"
)

func testConfig(t *testing.T) config.Config {
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	cfg.Listen = "127.0.0.1:0"
	cfg.NetworkName = "srvt"
	return cfg
}

// A server that cannot start must say so before it touches anything.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t)
	cfg.Listen = l.Addr().String()
	_, err = New(t.Context(), cfg, nil)
	// Where the host lacks something else, that is what is said.
	if kind := cay.KindOf(err); kind != cay.Conflict && kind != cay.Unsupported {
		t.Errorf("New = %v", err)
	}
	for _, name := range []string{"instances", "cay.db", "engines"} {
		if _, err := os.Stat(filepath.Join(cfg.Data, name)); !os.IsNotExist(err) {
			t.Errorf("%s was made", name)
		}
	}
	lock, err := host.Take(t.Context(), operator.Host(cfg)) // it was given back
	if err != nil {
		t.Error(err)
	} else {
		lock.Close()
	}
}
