package build

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	capability  = "security.capability"
	capableMost = 5 // names in a warning
)

// tellCapable warns that files lose their capabilities, which root images do
// not keep (ADR 1): a server that has one to take port 80, say. Each file is
// named once in a build.
func (r *run) tellCapable(step string, names []string) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return r.capable[name] })
	if len(names) == 0 {
		return
	}
	if r.capable == nil {
		r.capable = map[string]bool{}
	}
	for _, name := range names {
		r.capable[name] = true
	}
	more := ""
	if left := len(names) - capableMost; left > 0 {
		names, more = names[:capableMost], fmt.Sprintf(" and %d more", left)
	}
	r.log(cay.BuildLog{Level: cay.LogWarn, Step: step, Message: fmt.Sprintf("files in sandboxes have no capabilities: %.500q%s lose theirs", names, more)})
}

// capableIn lists the files of a tree that have capabilities, without a slash
// before them.
func capableIn(tree string) (names []string, err error) {
	err = filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if n, err := unix.Lgetxattr(path, capability, nil); err == nil && n > 0 {
			name, err := filepath.Rel(tree, path)
			names = append(names, name)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, disk.Error(err, "read the image's files")
	}
	return names, nil
}
