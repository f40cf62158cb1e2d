package operator

import (
	"errors"
	"testing"

	"github.com/cay-run/cay"
)

// A snapshot whose sandbox ended while it was copied is no failure, whatever its copy came upon, and
// keeps no other from being copied.
func TestCopyOfWhatWasRemoved(t *testing.T) {
	d := &Desk{filed: filed{some: make(chan struct{}, 1)}}
	vanished, fails := errors.New("read: no such file"), errors.New("the bucket is away")
	var did []cay.SnapshotID
	err := d.eachCopy([]cay.SnapshotID{"removed", "damaged", "kept"}, func(id cay.SnapshotID) bool { return id == "kept" }, func(id cay.SnapshotID) error {
		did = append(did, id)
		switch id {
		case "removed":
			return vanished
		case "damaged":
			return cay.Errorf(cay.Internal, "its bytes are others").WithCode(cay.CodeDamaged)
		}
		return fails
	})
	if !errors.Is(err, fails) || len(did) != 3 {
		t.Errorf("%v after %v", err, did)
	}
}
