package runsc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// A snapshot that is on its way to this machine is read by a process of its own in
// the sandbox's cgroup, cmd/cay-runsc/pages: the sentry has no network, and does
// not wait for one. That process asks here for parts of files, over a socket.

const (
	// pagesProgram and optionsName are what cay-runsc looks for: a program beside
	// the sentry, and a file in the directory that it restores from.
	pagesProgram = "gvisor-bin/checkpointgofer"
	optionsName  = "gcs_opts.json"

	arrivingName = "arriving" // a directory of a record
	socketName   = "socket"
)

// The answers to a question for a part of a file.
const (
	partThere = 0
	allThere  = 1
	partLost  = 2
)

// options are what the program is told.
type options struct {
	Socket   string `json:"socket"`
	Instance string `json:"instance"`
	Status   string `json:"status"`
}

// hello is what it says first, and reply the answer, which comes with a descriptor.
type hello struct {
	Instance cay.InstanceID `json:"instance"`
	File     string         `json:"file"`
}

type reply struct {
	Size  int64  `json:"size"`
	Error string `json:"error,omitempty"`
}

var _ engine.Streamer = (*Engine)(nil)

// arrivals is where snapshots arrive.
type arrivals func(context.Context, cay.SnapshotID) (engine.Arrival, error)

// Stream implements engine.Streamer.
func (e *Engine) Stream(from func(context.Context, cay.SnapshotID) (engine.Arrival, error)) (stop func(), err error) {
	dir := e.socketDir()
	// Readers have no rights; what is above is closed to all but root.
	err = errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711), removeFile(e.socket()))
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot make the socket for snapshots that arrive")
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: e.socket()})
	if err == nil {
		err = os.Chmod(e.socket(), 0o666)
	}
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot make the socket for snapshots that arrive")
	}
	e.mu.Lock()
	e.arrivals = from
	e.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var lines sync.WaitGroup
	lines.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			lines.Go(func() { e.answer(ctx, conn) })
		}
	})
	return func() {
		cancel()
		_ = l.Close()
		lines.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.arrivals = nil
	}, nil
}

func (e *Engine) socketDir() string { return filepath.Join(e.cfg.Run, arrivingName) }
func (e *Engine) socket() string    { return filepath.Join(e.socketDir(), socketName) }

// arrival finds a snapshot that arrives, or has arrived.
func (e *Engine) arrival(ctx context.Context, id cay.SnapshotID) (engine.Arrival, error) {
	e.mu.Lock()
	from := e.arrivals
	e.mu.Unlock()
	if from == nil {
		return nil, cay.Errorf(cay.Unavailable, "snapshot %s does not arrive here", id)
	}
	return from(ctx, id)
}

// restoreArriving restores from a snapshot that arrives. A build without the
// program that reads such a one waits until it is whole.
func (e *Engine) restoreArriving(ctx context.Context, r *record, s engine.RestoreSpec) error {
	a, err := e.arrival(ctx, s.Snapshot.ID)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(e.cfg.Engines, r.EngineHash, pagesProgram)); err != nil || r.EngineHash != e.cfg.Hash {
		if s.From, err = a.Whole(ctx); err != nil {
			return err
		}
		return e.restoreFrom(ctx, r, s)
	}
	bundle, err := arrivedBundle(ctx, a)
	if err != nil {
		return err
	}
	r.Arriving = s.Snapshot.ID
	for _, f := range s.Snapshot.Files {
		if f.Name == pagesName {
			r.Pages = f.Size
		}
	}
	image := e.recordFile(r.ID, arrivingName)
	recorded := func(p place) (document, error) {
		if err := e.writeOptions(r, image); err != nil {
			return nil, err
		}
		return bundle, bundle.put(p)
	}
	return e.launch(ctx, r, s.Root, s.Net, recorded, "restore", "--detach", "--background", "--image-path="+image)
}

// arrivedBundle waits for the bundle alone.
func arrivedBundle(ctx context.Context, a engine.Arrival) (document, error) {
	f, err := a.Open(bundleName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		_, err = a.Await(ctx, bundleName, 0, info.Size())
	}
	if err != nil {
		return nil, err
	}
	return decodeDocument(f)
}

// writeOptions makes the directory that cay-runsc restores from, and the file that
// says how far the loading is.
func (e *Engine) writeOptions(r *record, dir string) error {
	status := e.recordFile(r.ID, statusName)
	text, err := json.Marshal(options{Socket: e.socket(), Instance: string(r.ID), Status: status})
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o700),
		os.WriteFile(filepath.Join(dir, optionsName), text, 0o600),
		os.WriteFile(status, nil, 0o600),
	)
}

// answer serves one line, on which parts of one file are asked for one after
// another. It hangs up where the answer is not known: the other end asks again.
func (e *Engine) answer(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 4<<10)
	n, err := conn.Read(buf)
	if err != nil {
		return
	}
	var begin hello
	if json.NewDecoder(bytes.NewReader(buf[:n])).Decode(&begin) != nil || !cay.ValidID(string(begin.Instance)) {
		return
	}
	a, err := e.arrivalOf(ctx, conn, begin.Instance)
	if err == nil {
		err = begin.send(conn, a)
	}
	if err != nil {
		if !passing(ctx, err) {
			_ = say(conn, reply{Error: firstLine([]byte(err.Error()))}, nil)
		}
		return
	}
	for {
		n, err := conn.Read(buf)
		if err != nil || n != 16 {
			return
		}
		offset, length := binary.LittleEndian.Uint64(buf), binary.LittleEndian.Uint64(buf[8:])
		all, err := a.Await(ctx, begin.File, int64(offset), int64(length))
		answer := byte(partThere)
		switch {
		case err != nil && passing(ctx, err):
			return
		case err != nil:
			answer = partLost
		case all:
			answer = allThere
		}
		if _, err := conn.Write([]byte{answer}); err != nil {
			return
		}
	}
}

// passing reports whether an error is of this process, which ends, and not of the
// snapshot.
func passing(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled) || cay.KindOf(err) == cay.Unavailable
}

// arrivalOf finds what the process at the other end may read: its instance's
// snapshot and no other.
func (e *Engine) arrivalOf(ctx context.Context, conn *net.UnixConn, id cay.InstanceID) (engine.Arrival, error) {
	r, err := e.load(id)
	if err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "instance %s has no record", id)
	}
	pid, err := peer(conn)
	if err != nil {
		return nil, err
	}
	if r.Arriving == "" || !slices.Contains(e.cg.procs(id), pid) {
		return nil, cay.Errorf(cay.Denied, "process %d is not of instance %s", pid, id)
	}
	return e.arrival(ctx, r.Arriving)
}

// peer is the process that began a connection.
func peer(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := cmp.Or(err, credErr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// send answers with a descriptor of the file.
func (h hello) send(conn *net.UnixConn, a engine.Arrival) error {
	f, err := a.Open(h.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return say(conn, reply{Size: info.Size()}, unix.UnixRights(int(f.Fd())))
}

func say(conn *net.UnixConn, r reply, rights []byte) error {
	text, err := json.Marshal(r)
	if err == nil {
		_, _, err = conn.WriteMsgUnix(text, rights, nil)
	}
	return err
}
