package disk

import (
	"fmt"
	"syscall"

	"github.com/cay-run/cay"
)

// Reserve is the part of a disk that is kept for records, journals and logs:
// new work is refused before it, so that work under way can end in good order.
type Reserve struct {
	Dir   string // of the disk
	Bytes int64  // 0 chooses by the disk's size
	// GiveWay is asked to make room before work is refused, until enough says that there is
	// as much as it needs; nil where nothing can give way.
	GiveWay func(enough func() bool)
}

// The reserve that is chosen: a fiftieth of the disk within these bounds, and
// never more than an eighth.
const (
	leastReserve = 256 << 20
	mostReserve  = 2 << 30

	// fewInodes is how many files more a disk can hold when it counts as full.
	fewInodes = 1000
	// fullBelow is with how few bytes free a disk counts as full.
	fullBelow = 1 << 20
)

// Level is how full a disk is.
type Level struct {
	Size, Free, Reserve int64 // bytes; Free is as programs without privilege see it
	Inodes              bool  // it has too few files left to make
}

// Low reports whether new work is refused.
func (l Level) Low() bool { return l.Inodes || l.Free < l.Reserve }

// Near reports whether new work will be refused soon.
func (l Level) Near() bool { return l.Low() || l.Free < 2*l.Reserve }

// Level looks at the disk.
func (r Reserve) Level() (Level, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(r.Dir, &st); err != nil {
		return Level{}, err
	}
	l := Level{Size: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize, Reserve: r.Bytes}
	if l.Reserve <= 0 {
		l.Reserve = min(max(l.Size/50, leastReserve), mostReserve, l.Size/8)
	}
	l.Inodes = st.Files > 0 && st.Ffree < fewInodes
	return l, nil
}

// Room fails for new work that writes so many bytes, where they are not free
// beside the reserve, and nothing gives way. A disk that cannot be looked at is left
// to the work itself.
func (r Reserve) Room(what string, bytes int64) error {
	return r.room(what, bytes, func(l Level) bool { return !l.Low() && l.Free-bytes >= l.Reserve })
}

// RoomToSave is Room for work that saves something there is already, which may
// use three quarters of the reserve.
func (r Reserve) RoomToSave(what string, bytes int64) error {
	return r.room(what, bytes, func(l Level) bool { return l.Free-bytes >= l.Reserve/4 })
}

func (r Reserve) room(what string, bytes int64, enough func(Level) bool) error {
	has := func() bool {
		l, err := r.Level()
		return err != nil || enough(l)
	}
	if has() {
		return nil
	}
	if r.GiveWay != nil {
		r.GiveWay(has)
	}
	l, err := r.Level()
	if err != nil || enough(l) {
		return nil
	}
	return r.refuse(l, what, bytes)
}

func (r Reserve) refuse(l Level, what string, bytes int64) error {
	has := fmt.Sprintf("has %d MB free, and %d MB are kept in reserve", l.Free>>20, l.Reserve>>20)
	if l.Inodes {
		has = "cannot hold more files: it has no inodes left"
	}
	if bytes > 0 {
		what += fmt.Sprintf(" may take %d MB", bytes>>20)
	} else {
		what += " is refused"
	}
	return cay.Errorf(cay.NoSpace, "%s: the disk of %s %s", what, r.Dir, has).WithHint("%s", Cure)
}

// Cure says how a disk gets room again.
const Cure = "remove sandboxes, snapshots or templates that are not needed, then `cay gc`; or give the data directory a larger disk"

// Full returns the first of some directories whose disk is full, or nothing.
func Full(dirs ...string) string {
	for _, dir := range dirs {
		l, err := Reserve{Dir: dir, Bytes: fullBelow}.Level()
		if err == nil && (l.Free < fullBelow || l.Inodes) {
			return dir
		}
	}
	return ""
}
