package build

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// cacheLife is how long an unused layer or archive is kept.
const cacheLife = 14 * 24 * time.Hour

// Collect removes layers, archives and pulled images that were not used for
// long, or with dry only tells which. Templates do not need them, later builds
// do. No build may run: call it in Idle.
func (b *Builder) Collect(dry bool) ([]cay.Garbage, error) {
	before := time.Now().Add(-cacheLife)
	out, err := b.layers.Collect(before, func(value json.RawMessage) string {
		var s state
		if json.Unmarshal(value, &s) != nil {
			return ""
		}
		return s.Layer
	}, dry)
	uerr := b.eachUpload(func(path string, st fs.FileInfo) bool {
		old := st.ModTime().Before(before)
		if old {
			out = append(out, cay.Garbage{Kind: "archive", Name: filepath.Base(path), Bytes: disk.Use(path)})
		}
		return old && !dry
	})
	if b.cfg.Images == nil {
		return out, errors.Join(err, uerr)
	}
	images, ierr := b.cfg.Images.Collect(before, dry)
	return append(out, images...), errors.Join(err, uerr, ierr)
}

// Roots are the root images of registries' images that builds began with
// lately, by digest. No snapshot stands on them, and to make one again takes
// an image's package sources and a boot. No build may run: call it in Idle.
func (b *Builder) Roots() (map[string]bool, error) {
	out := map[string]bool{}
	err := b.layers.Values(time.Now().Add(-cacheLife), func(value json.RawMessage) {
		var p provisioned
		if json.Unmarshal(value, &p) == nil && p.Root != "" {
			out[p.Root] = true
		}
	})
	return out, err
}

// Tidy removes the root images of builds of this process that no snapshot
// stands on and no build is about to need. A root image is as large as all the
// files of its template, so they are not left for Collect.
func (b *Builder) Tidy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.images) == 0 {
		return nil
	}
	all, err := b.cfg.Snapshots.List()
	if err != nil {
		return err // one that is damaged may need any of them
	}
	used := map[string]bool{}
	for _, s := range all {
		used[s.Root] = true
	}
	var errs []error
	for name, l := range b.images {
		if l.holds > 0 || l.ours && used[name] {
			continue
		}
		if !l.ours {
			delete(b.images, name)
			continue
		}
		if err := b.cfg.Snapshots.RemoveImage(name); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(b.images, name)
	}
	return errors.Join(errs...)
}

// blame says of a build's error on a full disk that the disk is full: a guest
// meets that as a fault of its own, an engine dies of it.
func (b *Builder) blame(err error) error {
	if err == nil || cay.KindOf(err) == cay.NoSpace {
		return err
	}
	full := disk.Full(b.cfg.Data)
	if full == "" {
		return err
	}
	out := cay.Wrap(cay.NoSpace, err, "the disk of %s is full: %s", full, message(err)).WithHint("%s", disk.Cure)
	var step *cay.StepError
	if errors.As(err, &step) {
		return &cay.StepError{Step: step.Step, Err: out}
	}
	return out
}

// message is the part of an error that clients may see.
func message(err error) string {
	var ours *cay.Error
	if errors.As(err, &ours) {
		return ours.Msg
	}
	return "see the server's log"
}

// diskError tells a full disk from a broken one.
func diskError(ctx context.Context, err error, what string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return disk.Error(err, "cannot %s", what)
}
