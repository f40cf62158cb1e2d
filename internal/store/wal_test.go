package store

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// clearText is a sealer that hides nothing.
type clearText struct{}

func (clearText) Seal(plain []byte, _ string) string  { return string(plain) }
func (clearText) Open(text, _ string) ([]byte, error) { return []byte(text), nil }

// The log is copied back and used again, however much is written.
func TestLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s, err := Open(t.Context(), path, clearText{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	team := cay.Team{ID: cay.NewTeamID(), Name: "a"}
	kind := cay.Template{ID: cay.NewTemplateID(), Team: team.ID}
	build := cay.Build{ID: cay.NewBuildID(), Template: kind.ID, Team: team.ID, State: cay.BuildBuilding}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTemplate(t.Context(), kind); err != nil {
		t.Fatal(err)
	}
	if err := s.PutBuild(t.Context(), build); err != nil { // which syncs
		t.Fatal(err)
	}
	line := []cay.BuildLog{{Message: strings.Repeat("x", 100<<10)}}
	deadline := time.Now().Add(time.Minute)
	for n := 0; generation(t, path) < 3; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("after %d commits the log was never used again", n)
		}
		if err := s.AddBuildLogs(t.Context(), team.ID, build.ID, n, line); err != nil {
			t.Fatal(err)
		}
	}
}

// generation is how often the log was begun.
func generation(t *testing.T, path string) uint32 {
	t.Helper()
	f, err := os.Open(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var head [32]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		t.Fatal(err)
	}
	return binary.BigEndian.Uint32(head[12:])
}
