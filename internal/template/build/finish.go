package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// readyPause is between two tries of the ready command; it grows to the most.
const (
	readyPause     = 100 * time.Millisecond
	readyPauseMost = 2 * time.Second
	readyTry       = time.Minute // that one try may take
)

// finished is what a final key stands for.
type finished struct {
	Snapshot cay.SnapshotID
}

// finish makes the snapshot of what the steps left, or finds it.
func (r *run) finish(ctx context.Context) (cay.BuildResult, error) {
	setup := r.setup()
	key := digest("final 1", string(r.spec.Team), r.root, r.state.Layer, setup, r.spec.Limits,
		r.cfg.Node.EngineHash(), cay.SnapshotFormat)
	out := cay.BuildResult{Setup: setup, Digest: key}
	var done finished
	if !r.spec.Force && r.layers.Find(key, &done) && r.serves(ctx, done.Snapshot) {
		r.say(finalizeStep, "CACHED [finalize] snapshot")
		out.Snapshot = done.Snapshot
		return out, nil
	}
	r.leave() // its disk and memory are of no more use
	r.say(finalizeStep, "[finalize] making the root image")
	root, err := r.image(ctx)
	if err != nil {
		return out, err
	}
	defer os.Remove(root.tmp)
	s, err := r.snapshot(ctx, root, setup)
	if err != nil {
		return out, err
	}
	out.Snapshot = s.ID
	return out, r.layers.Remember(key, finished{s.ID})
}

// setup is what the processes of the template start with.
func (r *run) setup() cay.Setup {
	s := r.spec.Setup
	inherited := s.StartContext()
	s.Env, s.User, s.Dir, s.StartIn = r.state.Env, r.state.User, r.state.Dir, nil
	switch {
	case r.spec.StartCmd != "": // the ready command of another says nothing of it
		s.StartCmd, s.ReadyCmd = r.spec.StartCmd, r.spec.ReadyCmd
	case s.StartCmd == "" && r.spec.ReadyCmd != "":
		s.ReadyCmd = r.spec.ReadyCmd
	case s.StartCmd != "" || s.ReadyCmd != "":
		s.ReadyCmd = cmp.Or(r.spec.ReadyCmd, s.ReadyCmd)
		if !reflect.DeepEqual(inherited, s.StartContext()) {
			s.StartIn = &inherited
		}
	}
	return s
}

// serves reports whether sandboxes can start from a snapshot here.
func (r *run) serves(ctx context.Context, id cay.SnapshotID) bool {
	s, _, err := r.have(ctx, id)
	return err == nil && r.cfg.Node.CanRestore(s) == nil
}

// rootImage is a root image with all layers in it.
type rootImage struct {
	digest string
	file   string // to boot from
	tmp    string // a name that only this build knows; empty for none

	// kept waits until the image has its name and is on the disk for good.
	// It takes as long as the disk does; booting need not wait for it.
	kept func() error
}

// imageOf is what the key of files stands for.
type imageOf struct {
	Image string // its digest
}

// image makes the root image that the snapshot will stand on, or finds it.
func (r *run) image(ctx context.Context) (rootImage, error) {
	out := rootImage{digest: r.root, kept: func() error { return nil }}
	var err error
	if r.state.Layer == "" {
		out.file, err = r.cfg.Snapshots.Image(out.digest)
		return out, err
	}
	files, anew := filesKey(r.root, r.state.Layer), flatName(r.root, r.state.Layer)
	known := imageOf{anew}
	r.layers.Find(files, &known)
	for _, name := range []string{known.Image, anew} {
		r.hold(name, true)
		if out.file, err = r.cfg.Snapshots.Image(name); err == nil {
			out.digest = name
			return out, nil
		}
	}
	made, name, err := r.extended(ctx)
	if err == nil && made == "" {
		name = anew
		made, err = r.flatten(ctx, r.state.Layer)
	}
	if err != nil {
		return out, err
	}
	r.hold(name, true)
	out.digest, out.tmp = name, made+".boot"
	if err := os.Link(made, out.tmp); err != nil {
		return out, errors.Join(diskError(ctx, err, "name a root image"), os.Remove(made))
	}
	out.file = out.tmp
	done := make(chan error, 1)
	go func() {
		err := errors.Join(r.cfg.Snapshots.AddNamed(made, name), removed(made))
		if err == nil {
			err = r.layers.Remember(files, imageOf{name})
		}
		done <- err
	}()
	out.kept = sync.OnceValue(func() error { return <-done })
	return out, nil
}

// removed removes a file that may have gone.
func removed(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return disk.Error(err, "remove %s", name)
	}
	return nil
}

// passingImage returns an image that only this build needs.
func (r *run) passingImage(ctx context.Context, name, layer string) (string, error) {
	if known, err := r.cfg.Snapshots.Image(name); err == nil {
		return known, nil
	}
	tmp, err := r.flatten(ctx, layer)
	if err == nil {
		r.made = append(r.made, tmp)
		r.own = tmp
	}
	return tmp, err
}

// extended makes the image that the last sandbox was booted from one that has
// what its steps changed as well: most of an image need not be written twice
// then. It returns the image's name too, and "" where there is no such image.
func (r *run) extended(ctx context.Context) (file, name string, err error) {
	if r.own == "" {
		return "", "", nil
	}
	name = flatName(r.root, r.base)
	if r.state.Layer == r.base {
		return r.own, name, nil // they changed nothing
	}
	if r.last == nil || r.last.Digest != r.state.Layer || r.last.Below != r.base {
		return "", "", nil
	}
	tree, err := erofs.Open(r.own)
	if err != nil {
		return "", "", disk.Error(err, "read the image of the steps")
	}
	defer tree.Close()
	if err := errors.Join(r.layers.ApplyOne(tree, r.state.Layer), keepTmp(tree)); err != nil {
		return "", "", err
	}
	f, err := os.OpenFile(r.own, os.O_RDWR, 0)
	if err != nil {
		return "", "", diskError(ctx, err, "open the image of the steps")
	}
	if err := errors.Join(tree.Extend(ctx, f), f.Close()); err != nil {
		return "", "", diskError(ctx, err, "write a root image")
	}
	return r.own, extendedName(name, r.state.Layer), nil
}

// flatten writes the base with a layer, and those that it stands on, as one
// image.
func (r *run) flatten(ctx context.Context, layer string) (string, error) {
	base, err := r.cfg.Snapshots.Image(r.root)
	if err != nil {
		return "", err
	}
	return r.flattenOn(ctx, base, layer)
}

// flattenOn is flatten for a base that is a file.
func (r *run) flattenOn(ctx context.Context, base, layer string) (string, error) {
	tree, err := erofs.Open(base)
	if err != nil {
		return "", disk.Error(err, "read the base's root image")
	}
	defer tree.Close()
	if err := r.layers.Apply(tree, layer); err != nil {
		return "", err
	}
	return r.write(ctx, tree)
}

// write writes a tree as an image that has no name yet.
func (r *run) write(ctx context.Context, tree *erofs.Tree) (string, error) {
	if err := keepTmp(tree); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(r.work, "image-")
	if err != nil {
		return "", disk.Error(err, "make room for a root image")
	}
	err = errors.Join(tree.Write(ctx, f), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", diskError(ctx, err, "write a root image")
	}
	return f.Name(), nil
}

// keepTmp has /tmp be no RAM disk outside the overlay, as an empty one would
// be (ADR 1).
func keepTmp(tree *erofs.Tree) error {
	if err := tree.Put("tmp/.cay", erofs.Node{Mode: 0o100644, Mtime: time.Unix(1577836800, 0)}); err != nil {
		return cay.Wrap(cay.Invalid, err, "/tmp must be a directory")
	}
	return nil
}

// snapshot boots the new root, starts what is to run in it, and takes the
// snapshot when that is ready.
func (r *run) snapshot(ctx context.Context, root rootImage, setup cay.Setup) (s cay.Snapshot, err error) {
	defer func() { err = errors.Join(err, root.kept()) }() // nothing of this build goes on after it
	r.say(finalizeStep, "[finalize] booting")
	x, err := r.enter(ctx, root.file, root.digest, setup, r.spec.Limits, nil)
	if err != nil {
		return s, err
	}
	defer x.close()
	if err := r.launch(ctx, x, setup); err != nil {
		return s, x.explain(err)
	}
	r.say(finalizeStep, "[finalize] taking the snapshot")
	x.disconnect()
	s, err = x.lease.Save(ctx, cay.Snapshot{ID: cay.NewSnapshotID(), Team: r.spec.Team}, root.kept)
	return s, x.explain(err)
}

// launch runs the start command, which goes on, until the ready command says
// that it is up.
func (r *run) launch(ctx context.Context, x *box, setup cay.Setup) error {
	ready := setup.ReadyCmd
	if setup.StartCmd == "" && ready == "" {
		return nil
	}
	if ready == "" {
		ready = "sleep 20"
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := &startCommand{done: make(chan struct{})}
	if setup.StartCmd == "" {
		close(start.done)
	} else {
		r.say(finalizeStep, "[finalize] Running start command: %.2000s", setup.StartCmd)
		follow, stop := context.WithCancel(ctx)
		defer func() { // its lines come before the last of the build's
			stop()
			<-start.done
		}()
		begun := make(chan struct{})
		c := templateCommand(setup, setup.StartCmd, func(stream, line string) {
			r.say(finalizeStep, "[start] [%s]: %s", stream, line)
		})
		c.started = func() { close(begun) }
		go func() {
			defer close(start.done)
			err := x.run(follow, c)
			if follow.Err() == nil {
				if start.err = err; err != nil {
					cancel()
				}
			}
		}()
		select { // a template that is ready at once must have it, too
		case <-begun:
		case <-start.done:
		case <-x.lease.Died():
		}
	}
	r.say(finalizeStep, "[finalize] Waiting for template to be ready: %.2000s", ready)
	err := r.await(ctx, x, setup, ready)
	select {
	case <-start.done:
		if start.err != nil {
			return start.explain(setup.StartCmd)
		}
	default:
	}
	if err == nil {
		r.say(finalizeStep, "[finalize] Template is ready")
	}
	return err
}

// startCommand is how the start command ended, if it has.
type startCommand struct {
	done chan struct{}
	err  error // why, when it was not called off; set before done
}

func (s *startCommand) explain(cmd string) error {
	var how *exit
	if !errors.As(s.err, &how) {
		return commandError(cmd, s.err, nil)
	}
	return cay.Errorf(cay.Invalid, "the start command ended before the template was ready: %s", how.Status).
		WithHint("it must keep running; its output is in the log")
}

// await tries the ready command until it succeeds.
func (r *run) await(ctx context.Context, x *box, setup cay.Setup, ready string) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Times.Ready)
	defer cancel()
	var last error
	var tail []string // of the last try
	for pause := readyPause; ; pause = min(pause*3/2, readyPauseMost) {
		try, stop := context.WithTimeout(ctx, readyTry)
		tail = tail[:0]
		err := x.run(try, templateCommand(setup, ready, func(stream, line string) {
			r.log(cay.BuildLog{Level: cay.LogDebug, Step: finalizeStep, Message: "[ready] [" + stream + "]: " + line})
			tail = lastLines(tail, line)
		}))
		stop()
		var how *exit
		var refused *connect.Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused) && refused.Code() == connect.CodeUnauthenticated:
			return commandError(ready, err, nil)
		case errors.As(err, &how):
			last = err
		}
		select {
		case <-x.lease.Died():
			return err
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return notReady(r.cfg.Times.Ready, last, tail)
			}
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// notReady is the error of a ready command that did not succeed in time.
func notReady(within time.Duration, last error, tail []string) error {
	text := fmt.Sprintf("the ready command did not succeed within %s", within)
	if last != nil {
		text += ": " + last.Error()
	}
	if len(tail) > 0 {
		text += "\n" + strings.Join(tail, "\n")
	}
	return cay.Wrap(cay.Unavailable, last, "%.4000s", text).WithHint("the output of the start command is in the log")
}

// templateCommand is a line of the user's shell in the context of the template's
// start command.
func templateCommand(setup cay.Setup, text string, line func(stream, line string)) command {
	in := setup.StartContext()
	return command{user: in.User, dir: in.Dir, env: in.Env, args: []string{"/bin/bash", "-l", "-c", text}, line: line}
}
