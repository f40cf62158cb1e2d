package builtin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cay-run/cay/internal/machine/disk"
)

// wantedSuffix ends the names of empty files below <data>/builds, which are
// there for the extras that an operator asked for.
const wantedSuffix = ".wanted"

// Wanted lists the templates that this server is to have, in the order in
// which to build them.
func (b *Builder) Wanted() []string {
	return append(Names(), slices.DeleteFunc(Extras(), func(name string) bool {
		_, err := os.Lstat(b.wantedPath(name))
		return err != nil
	})...)
}

// want has an extra be kept, and built again when it must be. Others are.
func (b *Builder) want(name string) error {
	if !slices.Contains(Extras(), name) {
		return nil
	}
	if err := os.WriteFile(b.wantedPath(name), nil, 0o600); err != nil {
		return disk.Error(err, "note that template %s is wanted", name)
	}
	return nil
}

// Forget has an extra not be wanted any more. Collect frees its room on the disk.
func (b *Builder) Forget(name string) error {
	if err := os.Remove(b.wantedPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return disk.Error(err, "forget template %s", name)
	}
	return nil
}

func (b *Builder) wantedPath(name string) string {
	return filepath.Join(b.dir, name+wantedSuffix)
}
