package cay

import (
	"path"
	"strings"
	"time"
	"unicode/utf8"
)

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

// VolumeUsage is how full a volume is.
type VolumeUsage struct {
	Used, Size int64 // bytes
	Files      int64
	Stored     int64 // bytes that it takes of the data storage
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

// Covers reports whether a clean path is where the volume is, or below.
func (m VolumeMount) Covers(name string) bool { return inside(name, m.Path) }

// MountSpec is what a caller asks of a mount.
type MountSpec struct {
	Volume   string // name or id
	Path     string
	SubPath  string `json:",omitempty"`
	ReadOnly bool   `json:",omitempty"`
}

// The bounds of volumes.
const (
	MaxVolumeName   = 128
	MinVolumeMB     = 16
	MaxVolumeMB     = 16 << 20 // 16 TiB
	MaxVolumeMounts = 32       // of one sandbox
	maxMountPath    = 1024     // bytes
	maxMountPart    = 255      // bytes between two slashes
)

// CheckVolumeName refuses what cannot be a volume's name. It may have the form of an
// id: a reference means a volume of that id first, and no name is taken that is an id.
func CheckVolumeName(name string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	switch {
	case name == "":
		return Errorf(Invalid, "name: must not be empty")
	case len(name) > MaxVolumeName:
		return Errorf(Invalid, "name: has more than %d bytes", MaxVolumeName)
	case strings.Trim(name, allowed) != "":
		return Errorf(Invalid, "name: %.140q is no name for a volume", name).WithHint("use letters, digits, '_' and '-'")
	}
	return nil
}

// CheckVolumeSize refuses a size that no volume can have.
func CheckVolumeSize(sizeMB int) error {
	if sizeMB < MinVolumeMB || sizeMB > MaxVolumeMB {
		return Errorf(Invalid, "sizeMB: must be %d to %d", MinVolumeMB, MaxVolumeMB)
	}
	return nil
}

// CheckVolumeMounts refuses mounts that no sandbox can have, in one error that
// lists each by its index. known, unless it is nil, is asked about each that is
// well formed: its error, if it is of what the caller asked, is listed too.
func CheckVolumeMounts(mounts []MountSpec, known func(i int) error) error {
	if len(mounts) > MaxVolumeMounts {
		return Errorf(Invalid, "volumeMounts: has more than %d entries", MaxVolumeMounts)
	}
	var faults []string
	for i, m := range mounts {
		err := m.check()
		for j := 0; err == nil && j < i; j++ {
			err = m.collides(mounts[j], j)
		}
		if err == nil && known != nil {
			err = known(i)
		}
		switch KindOf(err) {
		case "":
		case Invalid, NotFound:
			faults = append(faults, Errorf(Invalid, "volumeMounts[%d]%w", i, err).Msg)
		default:
			return err
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return Errorf(Invalid, "%s", strings.Join(faults, "; "))
}

// reserved are directories of a sandbox that are not its own: nothing is
// mounted there or below.
var reserved = []string{"/proc", "/sys", "/dev", "/.cay"}

// check begins its words with the field's name behind a dot, or a colon.
func (m MountSpec) check() error {
	if m.Volume == "" {
		return Errorf(Invalid, ".name: is required")
	}
	if err := checkMountText(m.Path); err != nil {
		return Errorf(Invalid, ".path: %w", err)
	}
	switch {
	case m.Path == "":
		return Errorf(Invalid, ".path: is required")
	case !strings.HasPrefix(m.Path, "/"):
		return Errorf(Invalid, ".path: %.100q is not absolute", m.Path)
	case path.Clean(m.Path) != m.Path:
		return Errorf(Invalid, ".path: %.100q must be written as %.100q", m.Path, path.Clean(m.Path))
	case m.Path == "/":
		return Errorf(Invalid, ".path: the root of the sandbox cannot be a volume")
	}
	for _, dir := range reserved {
		if inside(m.Path, dir) {
			return Errorf(Invalid, ".path: %.100q is in %s, which is not the sandbox's own", m.Path, dir)
		}
	}
	if m.SubPath == "" {
		return nil
	}
	if err := checkMountText(m.SubPath); err != nil {
		return Errorf(Invalid, ".subPath: %w", err)
	}
	if m.SubPath == "." || m.SubPath == ".." || strings.HasPrefix(m.SubPath, "/") || strings.HasPrefix(m.SubPath, "../") || path.Clean(m.SubPath) != m.SubPath {
		return Errorf(Invalid, ".subPath: %.100q is no clean path below the volume's root", m.SubPath).WithHint("write it like a/b")
	}
	return nil
}

func checkMountText(text string) error {
	switch {
	case !utf8.ValidString(text):
		return Errorf(Invalid, "%.100q is not UTF-8", text)
	case strings.ContainsRune(text, 0):
		return Errorf(Invalid, "%.100q holds a zero byte", text)
	case len(text) > maxMountPath:
		return Errorf(Invalid, "has more than %d bytes", maxMountPath)
	}
	for part := range strings.SplitSeq(text, "/") {
		if len(part) > maxMountPart {
			return Errorf(Invalid, "%.40q… has more than %d bytes", part, maxMountPart)
		}
	}
	return nil
}

func (m MountSpec) collides(other MountSpec, index int) error {
	switch {
	case m.Path == other.Path:
		return Errorf(Invalid, ".path: %.100q is that of volumeMounts[%d] too", m.Path, index)
	case inside(m.Path, other.Path):
		return Errorf(Invalid, ".path: %.100q is inside of volumeMounts[%d], %.100q", m.Path, index, other.Path)
	case inside(other.Path, m.Path):
		return Errorf(Invalid, ".path: %.100q has volumeMounts[%d], %.100q, inside", m.Path, index, other.Path)
	}
	return nil
}

// inside reports whether a clean path is a directory or below it.
func inside(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
