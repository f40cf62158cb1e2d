package cay

import "time"

// VolumeEntryType is what a name in a volume stands for.
type VolumeEntryType string

// The types of entries; the unknown are FIFOs, sockets and devices.
const (
	VolumeFile      VolumeEntryType = "file"
	VolumeDirectory VolumeEntryType = "directory"
	VolumeSymlink   VolumeEntryType = "symlink"
	VolumeUnknown   VolumeEntryType = "unknown"
)

// VolumeEntry is a file, a directory or another thing with a name in a volume.
type VolumeEntry struct {
	Name, Path string // the path begins with a slash; the root's name is "/"
	Type       VolumeEntryType
	Size       int64
	Mode       uint32 // permissions
	UID, GID   uint32
	Accessed   time.Time
	Modified   time.Time
	Changed    time.Time
	Target     string // a link's
}

// VolumeMeta is what a caller says of an entry; what is nil stays, or is the
// default.
type VolumeMeta struct{ UID, GID, Mode *uint32 }
