package build

import (
	"errors"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/template/layer"
)

// A failure for the server's full disk says so, and which disk, also
// where a guest or an engine met it as a fault of its own.
func TestAFullDiskIsTheReason(t *testing.T) {
	at := disktest.Ext4(t, 16<<20)
	layers, err := layer.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{cfg: Config{Data: at}}
	silent := &cay.StepError{Step: "3", Err: cay.Errorf(cay.Internal, "the agent in the new root did not take its settings")}
	if got := b.blame(silent); got != error(silent) {
		t.Errorf("with room on the disk: %v", got)
	}
	empty := disktest.Fill(t, at)
	var ours *cay.Error
	err = layers.Remember(strings.Repeat("a", 64), strings.Repeat("x", 1<<16))
	if !errors.As(err, &ours) || ours.Kind != cay.NoSpace || ours.Msg != "write a key: the disk at "+at+" is full" || ours.Hint == "" {
		t.Errorf("a key: %#v", err)
	}
	var step *cay.StepError
	got := b.blame(silent)
	if !errors.As(got, &step) || step.Step != "3" || !errors.As(got, &ours) || ours.Kind != cay.NoSpace ||
		ours.Msg != "the disk of "+at+" is full: the agent in the new root did not take its settings" {
		t.Errorf("an agent without room: %#v", got)
	}
	if err := b.blame(nil); err != nil {
		t.Errorf("a finished build: %v", err)
	}
	empty()
	if err := layers.Remember(strings.Repeat("a", 64), "x"); err != nil {
		t.Error(err)
	}
}
