package disk_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
)

func TestReserve(t *testing.T) {
	dir := disktest.Ext4(t, 64<<20)
	r := disk.Reserve{Dir: dir}
	l, err := r.Level()
	if err != nil || l.Reserve != l.Size/8 || l.Low() || l.Near() || l.Free > l.Size {
		t.Fatalf("an empty disk: %+v, %v", l, err)
	}
	if err := r.Room("it", 0); err != nil {
		t.Error(err)
	}
	// A write that fits on the disk and not beside the reserve is refused; saving may use
	// a part of the reserve.
	between := l.Free - l.Reserve/2
	if err := r.Room("a build", between); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "a build") {
		t.Errorf("into the reserve: %v", err)
	}
	if err := r.RoomToSave("a pause", between); err != nil {
		t.Error(err)
	}
	if err := r.RoomToSave("a pause", l.Free); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("all of it: %v", err)
	}
	if full := disk.Full(os.TempDir(), dir); full != "" {
		t.Errorf("%s is full", full)
	}
	empty := disktest.Fill(t, dir)
	if l, err = r.Level(); err != nil || !l.Low() || !l.Near() {
		t.Errorf("a full disk: %+v, %v", l, err)
	}
	for _, err := range []error{r.Room("a create", 0), r.RoomToSave("a pause", 0)} {
		if cay.KindOf(err) != cay.NoSpace {
			t.Errorf("a full disk: %v", err)
		}
	}
	if full := disk.Full(os.TempDir(), dir); full != dir {
		t.Errorf("%q is full", full)
	}
	empty()
	if err := r.Room("it", 0); err != nil {
		t.Error(err)
	}
}

// A disk without inodes has bytes left and holds no file more.
func TestReserveOfInodes(t *testing.T) {
	dir := disktest.Ext4(t, 8<<20)
	for i := 0; ; i++ {
		if err := os.WriteFile(filepath.Join(dir, strings.Repeat("f", i%100+1)+string(rune('a'+i/100%26))+string(rune('a'+i/2600))), nil, 0o600); err != nil {
			break
		}
	}
	r := disk.Reserve{Dir: dir, Bytes: 1}
	if err := r.Room("a create", 0); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("without inodes: %v", err)
	}
}

// A reserve that an operator chose is kept as it is, and a disk that is not
// there is left to the work.
func TestReserveAsChosen(t *testing.T) {
	if l, err := (disk.Reserve{Dir: t.TempDir(), Bytes: 5}).Level(); err != nil || l.Reserve != 5 {
		t.Errorf("%+v, %v", l, err)
	}
	if err := (disk.Reserve{Dir: "/nowhere"}).Room("it", 1); err != nil {
		t.Error(err)
	}
}
