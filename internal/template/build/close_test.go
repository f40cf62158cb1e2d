package build

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/machine/disk/disktest"
)

// A file that cannot be removed fails no build: it is told in the log, the rest
// is removed and the images are given back.
func TestAFileThatStaysFailsNoBuild(t *testing.T) {
	var said bytes.Buffer
	b := &Builder{cfg: Config{Log: slog.New(slog.NewTextHandler(&said, nil))}, images: map[string]*lease{}}
	busy, other := disktest.Ext4(t, 4<<20), filepath.Join(t.TempDir(), "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	r := &run{Builder: b, made: []string{busy, other}}
	r.hold("image", true)
	r.close()
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("another file stays too: %v", err)
	}
	if b.images["image"].holds != 0 {
		t.Error("an image is held for ever")
	}
	if !strings.Contains(said.String(), busy) {
		t.Errorf("the log has %q", said.String())
	}
}
