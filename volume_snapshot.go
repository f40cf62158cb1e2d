package cay

import (
	"strings"
	"time"
)

// VolumeSnapshot is a state of a volume that stays as it is. Its files are where
// those of volumes are, under its own id.
type VolumeSnapshot struct {
	ID     VolumeID
	Volume VolumeID
	Team   TeamID
	// Name is the volume's only one.
	Name      string
	SizeMB    int // of the volume at the time
	CreatedAt time.Time
}

// CheckVolumeSnapshotName refuses what cannot be the name of a volume's snapshot.
func CheckVolumeSnapshotName(name string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
	switch {
	case len(name) > MaxVolumeName:
		return Errorf(Invalid, "name: has more than %d bytes", MaxVolumeName)
	case name == "" || strings.Trim(name, ".") == "" || strings.Trim(name, allowed) != "":
		return Errorf(Invalid, "name: %.140q is no name for a snapshot", name).WithHint("use letters, digits, '_', '-' and '.'")
	}
	return nil
}
