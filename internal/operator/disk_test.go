package operator

import (
	"testing"

	"github.com/cay-run/cay/internal/machine/disk"
)

func TestFullness(t *testing.T) {
	for _, tt := range []struct {
		free   int64
		before fullness
		want   fullness
	}{
		{1000, diskRoomy, diskRoomy},
		{200, diskRoomy, diskRoomy},
		{199, diskRoomy, diskNear},
		{224, diskNear, diskNear}, // at the limit it is told once
		{225, diskNear, diskRoomy},
		{99, diskNear, diskLow},
		{124, diskLow, diskLow},
		{125, diskLow, diskNear},
		{0, diskRoomy, diskLow},
		{1000, diskLow, diskRoomy},
	} {
		if got := fullnessOf(disk.Level{Size: 10_000, Free: tt.free, Reserve: 100}, tt.before); got != tt.want {
			t.Errorf("%d free, %s before: %s, want %s", tt.free, tt.before, got, tt.want)
		}
	}
	if got := fullnessOf(disk.Level{Free: 1000, Reserve: 100, Inodes: true}, diskRoomy); got != diskLow {
		t.Errorf("without inodes: %s", got)
	}
}
