package servertest

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// RealAgent is the agent of sandboxes on the test's own machine, whose user is the
// test's and has a home: its processes, terminals and files are real.
func RealAgent(t testing.TB, home string) http.Handler {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": fmt.Sprintf("user:x:%d:%d::%s:/bin/bash\n", os.Geteuid(), os.Getegid(), home), "group": "",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	reaper := reap.New(false)
	t.Cleanup(reaper.Close)
	a := agent.New(agent.Config{Reaper: reaper, Root: root, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(a.Close)
	return a.Handler()
}
