package cay

import "time"

// VolumeID names a volume. It is a UUID, as E2B's wire wants.
type VolumeID string

// NewVolumeID returns a fresh UUID.
func NewVolumeID() VolumeID { return VolumeID(uuid()) }

// Volume is a directory of files that outlives sandboxes and that several of its
// team mount at once. It is no part of a checkpoint: a rollback keeps what is
// in it.
type Volume struct {
	ID   VolumeID
	Team TeamID
	// Name is of letters, digits, "_" and "-", and is the team's only one.
	Name string
	// SizeMB bounds what it holds, names and all.
	SizeMB    int
	CreatedAt time.Time
	// Version is raised by one with each change of the record.
	Version int64
}

// VolumeMount is where a sandbox has a volume. A sandbox keeps its mounts for
// life, and so do the snapshots that are taken of it.
type VolumeMount struct {
	Volume VolumeID `json:"volume"`
	Name   string   `json:"name"` // the volume's, when the sandbox was created
	Path   string   `json:"path"` // absolute and clean
	// SubPath is the directory of the volume that is mounted, relative and clean;
	// empty for all of it. It is made when it is not there.
	SubPath  string `json:"subPath,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}
