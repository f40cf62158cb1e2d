// Package volume keeps volumes: directories of files that outlive sandboxes.
// Storage is the seam: on one machine each volume is a file system in a file of
// the data storage; a cluster may keep them in a bucket. The conformance suite
// in volumetest is what every Storage passes.
package volume

import (
	"context"

	"github.com/cay-run/cay"
)

// Storage keeps volumes. All methods are safe for concurrent use. Errors are
// *cay.Error: NotFound for a volume that is not there, Conflict for one that is
// there or is attached, NoSpace for a full disk.
type Storage interface {
	// Create makes an empty volume of at most sizeMB, whose root directory is
	// the default user's. It leaves nothing behind when it fails.
	Create(ctx context.Context, id cay.VolumeID, sizeMB int) error
	// Clone makes a volume with the files that another has at this moment, and
	// which may be attached meanwhile.
	Clone(ctx context.Context, from, id cay.VolumeID) error
	// Replace has a volume have the files and the size that another has at this
	// moment, and which may be attached, in place of its own. Conflict while the
	// volume is attached. A crash leaves either.
	Replace(ctx context.Context, from, id cay.VolumeID) error
	// Resize changes the bound of a volume, which may be attached. Invalid when
	// the volume holds more.
	Resize(ctx context.Context, id cay.VolumeID, sizeMB int) error
	// Delete removes a volume with its files. Conflict while it is attached; one
	// that is not there is no error.
	Delete(ctx context.Context, id cay.VolumeID) error
	// Attach returns the directory of this machine that is the root of the volume,
	// until Detach was called as often as Attach. The files below it are a
	// guest's: no caller may follow a link in it.
	Attach(ctx context.Context, id cay.VolumeID) (dir string, err error)
	Detach(id cay.VolumeID)
	// Failure says what it means that a call on the files of an attached volume
	// failed, as the function of this name does.
	Failure(id cay.VolumeID, err error) *cay.Error
	// Usage tells how full a volume is.
	Usage(ctx context.Context, id cay.VolumeID) (Usage, error)
	// List lists the volumes that there are.
	List(ctx context.Context) ([]cay.VolumeID, error)
}

// Usage is how full a volume is.
type Usage = cay.VolumeUsage
