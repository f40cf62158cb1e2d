package interp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// obedience is how long interrupted code may go on. Then its kernel ends.
	obedience = 10 * time.Second
	// maxLine bounds what a kernel says at once, and so our memory.
	maxLine = 512 << 20
	// pipeSize is what a pipe holds: one read of this size empties it.
	pipeSize = 64 << 10
	// R writes a line in pieces. Text waits for more of its line, for a moment
	// where the line is whole, and never for long.
	restOfLine, moreLines, longest = 30 * time.Millisecond, 3 * time.Millisecond, 50 * time.Millisecond
)

// errStuck says that a kernel was ended because its code would not stop.
var errStuck = errors.New("the code did not stop")

// dialect is what differs between kernels that speak in lines.
type dialect interface {
	execute(k *lines, code source) error
	prepare(k *lines, p preparation) error
	restore(k *lines) error
	interrupt(k *lines)
}

// lines is a kernel of ours. It reads a line of its FIFO "requests" for each
// thing to do and writes JSON lines to its FIFO "events", the last of which
// says that it is done. Things are numbered; the start is number 0. Its standard outputs are pipes, so that what code
// prints, or programs that it runs, cannot be taken for an event.
type lines struct {
	*process
	dialect  dialect
	requests *os.File
	events   int         // descriptors of ours, read without blocking
	turn     int         // the same, of a FIFO that holds a byte while a bash may be interrupted
	stopped  *os.File    // the file that names the request which a bash is to stop
	outputs  [2]*output  // standard output and error
	gone     [2]*os.File // a pipe whose end of file is the process's end
	count    int         // executions
	last     int         // request

	held  lineEvent // text that waits for more of its output
	since time.Time // that there is some

	mu  sync.Mutex
	sub *listener
}

// listener receives what the kernel says until it is done.
type listener struct {
	events chan lineEvent // closed when the kernel is gone
	gone   chan struct{}  // closed when the receiver is gone
}

// lineEvent is what a kernel says.
type lineEvent struct {
	Type string `json:"type"` // stdout, stderr, result, error or done
	ID   int    `json:"id"`   // of the request that is done

	Text      string                     `json:"text"`
	Main      bool                       `json:"main"`
	Data      map[string]json.RawMessage `json:"data"`
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback string                     `json:"traceback"`
	Status    int                        `json:"status"`
}

// startLines starts a kernel and waits until it is ready. Its process ends
// when ctx does.
func startLines(ctx context.Context, s spec, d dialect) (kernel, error) {
	p, err := newProcess(s)
	if err != nil {
		return nil, err
	}
	k := &lines{process: p, dialect: d, events: -1, turn: -1}
	ready, err := k.launch(s)
	if err != nil {
		k.cleanup()
		return nil, err
	}
	stop := context.AfterFunc(ctx, k.end)
	late := time.AfterFunc(startLimit, func() {
		k.blame("it took too long")
		k.kill()
	})
	_, err = k.await(context.Background(), ready, func(lineEvent) {})
	late.Stop()
	if err != nil {
		err = k.notStarted(err)
		stop()
		k.cleanup()
		return nil, err
	}
	go func() {
		<-k.done
		stop()
		k.cleanup()
	}()
	return k, nil
}

// launch starts the process and the reading of what it says.
func (k *lines) launch(s spec) (ready *listener, err error) {
	for _, name := range []string{"requests", "events", "turn"} {
		path := filepath.Join(k.dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, err
		}
		if err := s.own(path); err != nil {
			return nil, err
		}
	}
	// Open for both, so that neither side waits for the other.
	k.requests, err = os.OpenFile(filepath.Join(k.dir, "requests"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	k.events, err = unix.Open(filepath.Join(k.dir, "events"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	k.turn, err = unix.Open(filepath.Join(k.dir, "turn"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if k.stopped, err = os.OpenFile(filepath.Join(k.dir, "stopped"), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, err
	}
	if err := k.stops(0); err != nil { // its block of the disk is taken now
		return nil, err
	}
	var theirs [2]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		k.outputs[i], theirs[i], err = newOutput(name)
		if err != nil {
			return nil, err
		}
		defer theirs[i].Close()
	}
	if k.gone[0], k.gone[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	ready = k.listen()
	if err := k.spawn(s, theirs[0], theirs[1], k.dir); err != nil {
		return nil, err
	}
	go func() {
		<-k.exited
		_ = k.requests.SetWriteDeadline(time.Unix(1, 0)) // it has no reader
		_ = k.gone[1].Close()
	}()
	go k.read()
	return ready, nil
}

// cleanup frees what a kernel had that is gone.
func (k *lines) cleanup() {
	for _, f := range []*os.File{k.requests, k.stopped, k.gone[0]} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, fd := range []int{k.events, k.turn} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, o := range k.outputs {
		if o != nil {
			o.close()
		}
	}
	_ = os.RemoveAll(k.dir)
}

// stops names the request that an interrupt is meant for, in the same bytes each
// time: that needs no room on a full disk.
func (k *lines) stops(request int) error {
	_, err := k.stopped.WriteAt(fmt.Appendf(nil, "%020d\n", request), 0)
	return err
}

// request writes a line to the kernel.
func (k *lines) request(line []byte) error {
	_, err := k.requests.Write(append(line, '\n'))
	return err
}

func (k *lines) run(ctx context.Context, code source, t *translator) error {
	k.count++
	k.last++
	t.emit(countEvent{Type: "number_of_executions", Count: k.count})
	sub := k.listen()
	if err := k.dialect.execute(k, code); err != nil {
		k.unlisten(sub)
		return errors.Join(errKernelGone, err)
	}
	status, err := k.await(ctx, sub, func(ev lineEvent) {
		switch ev.Type {
		case "stdout", "stderr":
			t.emit(streamEvent{Type: ev.Type, Text: ev.Text, Timestamp: timestamp("")})
		case "result":
			t.emit(newResult(ev.Data, ev.Main))
		case "error":
			t.error(ev.Name, ev.Value, ev.Traceback)
		}
	})
	if err == nil && status != 0 {
		t.error("ExitCode", fmt.Sprint(status), fmt.Sprintf("the code ended with exit code %d", status))
	}
	return err
}

func (k *lines) prepare(p preparation) error {
	return k.quietly(func() error { return k.dialect.prepare(k, p) })
}

func (k *lines) restore() error {
	return k.quietly(func() error { return k.dialect.restore(k) })
}

func (k *lines) warm(int) (more bool, err error) { return false, nil }

// quietly asks for something that shows nothing.
func (k *lines) quietly(ask func() error) error {
	k.last++
	sub := k.listen()
	if err := ask(); err != nil {
		k.unlisten(sub)
		return errors.Join(errKernelGone, err)
	}
	_, err := k.await(context.Background(), sub, func(lineEvent) {})
	return err
}

// await hands on what the kernel says until it is done. When ctx ends it
// interrupts the kernel, and ends one that does not obey.
func (k *lines) await(ctx context.Context, sub *listener, handle func(lineEvent)) (status int, err error) {
	defer k.unlisten(sub)
	stop := ctx.Done()
	var again, enough <-chan time.Time
	err = errKernelGone
	for {
		select {
		case ev, ok := <-sub.events:
			switch {
			case !ok:
				return 0, err
			case ev.Type != "done":
				handle(ev)
			case ev.ID == k.last:
				return ev.Status, nil
			}
		case <-stop:
			stop = nil
			enough = time.After(obedience)
			k.dialect.interrupt(k)
			again = time.After(2 * time.Second)
		case <-again:
			// The first may have come before the code began to run.
			k.dialect.interrupt(k)
			again = time.After(2 * time.Second)
		case <-enough:
			again, enough, err = nil, nil, errStuck
			k.blame("its code did not stop")
			k.kill()
		}
	}
}

// signalled interrupts what the kernel has started, and itself.
func (k *lines) signalled() { k.signal(syscall.SIGINT) }

func (k *lines) listen() *listener {
	s := &listener{events: make(chan lineEvent), gone: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.done:
		close(s.events)
	default:
		k.sub = s
	}
	return s
}

func (k *lines) unlisten(s *listener) {
	close(s.gone)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sub == s {
		k.sub = nil
	}
}

// publish hands an event to the subscriber. A slow subscriber holds the kernel
// back: its pipes fill up.
func (k *lines) publish(ev lineEvent) {
	k.mu.Lock()
	s := k.sub
	k.mu.Unlock()
	if s == nil {
		return
	}
	select {
	case s.events <- ev:
	case <-s.gone:
	}
}

// read reads what the kernel and its programs say until the process is gone.
func (k *lines) read() {
	if err := k.readAll(); err != nil {
		k.blame("it cannot be understood: " + err.Error())
		k.kill() // it is of no use
	}
	<-k.exited
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.done)
	if k.sub != nil {
		close(k.sub.events)
	}
}

func (k *lines) readAll() error {
	buf := make([]byte, pipeSize)
	var half []byte // of a line
	for {
		gone, err := k.poll(k.patience())
		if err != nil {
			return err
		}
		// The events are read first: text that was printed before them is in
		// the pipes by now, and is published before them.
		n, err := readSome(k.events, buf)
		if err != nil {
			return err
		}
		seen := len(half) // and no line ends there
		half = append(half, buf[:n]...)
		printed := false
		for _, o := range k.outputs {
			if text := o.read(buf); text != "" {
				k.hold(o.name, text)
				printed = true
			}
		}
		if !printed || n > 0 || gone || time.Since(k.since) > longest {
			k.tellHeld()
		}
		if half, err = k.tellLines(half, seen); err != nil {
			return err
		}
		if gone && n == 0 {
			return nil
		}
	}
}

// hold keeps text that was printed until more of it is there.
func (k *lines) hold(name, text string) {
	if k.held.Type != name {
		k.tellHeld()
		k.since = time.Now()
	}
	k.held.Type, k.held.Text = name, k.held.Text+text
	if len(k.held.Text) >= pipeSize {
		k.tellHeld()
	}
}

func (k *lines) tellHeld() {
	if k.held.Type != "" {
		k.publish(k.held)
		k.held = lineEvent{}
	}
}

// patience is how long the held text waits.
func (k *lines) patience() time.Duration {
	switch {
	case k.held.Type == "":
		return -time.Millisecond // nothing does
	case strings.HasSuffix(k.held.Text, "\n"):
		return moreLines
	default:
		return restOfLine
	}
}

// poll waits for something to read, for so long or where it is negative for ever,
// and reports whether the process is gone.
func (k *lines) poll(limit time.Duration) (gone bool, err error) {
	fds := []unix.PollFd{
		{Fd: int32(k.gone[0].Fd()), Events: unix.POLLIN},
		{Fd: int32(k.events), Events: unix.POLLIN},
	}
	for _, o := range k.outputs {
		fds = append(fds, unix.PollFd{Fd: int32(o.fd), Events: unix.POLLIN})
	}
	for {
		_, err := unix.Poll(fds, int(limit.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return fds[0].Revents != 0, err
		}
	}
}

// tellLines publishes the events in data, where no line ends in what was seen
// before, and returns the incomplete rest.
func (k *lines) tellLines(data []byte, seen int) (rest []byte, err error) {
	for {
		end := bytes.IndexByte(data[seen:], '\n')
		if end < 0 {
			if len(data) > maxLine {
				return nil, errors.New("a line is too long")
			}
			return data, nil
		}
		line := data[:seen+end]
		data, seen = data[seen+end+1:], 0
		var ev lineEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			return nil, err
		}
		k.publish(ev)
	}
}
