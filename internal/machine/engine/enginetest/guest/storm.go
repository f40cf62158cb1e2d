package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// storm is something that the guest does all the time, in a few threads.
type storm struct {
	once func(turn int) error // does it once
	done atomic.Int64         // counts how often that succeeded
	last atomic.Value         // the newest error, as text
}

// answering and silent are addresses of the host, as text: of a port that answers,
// and of one that does not.
var answering, silent atomic.Value

var storms = map[string]*storm{
	"clients":   {once: dialHost},
	"callers":   {once: dialSilent},
	"loopback":  {once: dialLoopback},
	"datagrams": {once: datagrams},
	"sockets":   {once: socketPairs},
	"processes": {once: processes},
	"files":     {once: files},
	"mappings":  {once: mappings},
	"waits":     {once: waits},
	"terminals": {once: terminals},
}

var stormAnswers = map[string]func(*http.Request) (string, error){
	"/storm":       beginStorm,
	"/stormed":     stormed,
	"/storm-error": stormError,
}

// beginStorm begins threads of a storm, and says where the host is from now on.
func beginStorm(r *http.Request) (string, error) {
	s := storms[r.FormValue("kind")]
	if s == nil {
		return "", fmt.Errorf("no storm %q", r.FormValue("kind"))
	}
	answering.Store(r.FormValue("answering"))
	silent.Store(r.FormValue("silent"))
	for range number(r, "threads") {
		go func() {
			for turn := 0; ; turn++ {
				if err := s.once(turn); err != nil {
					s.last.Store(err.Error())
				} else {
					s.done.Add(1)
				}
			}
		}()
	}
	return "", nil
}

// stormed says how often a storm has done what it does.
func stormed(r *http.Request) (string, error) {
	return fmt.Sprint(storms[r.FormValue("kind")].done.Load()), nil
}

// stormError is the newest error of a storm.
func stormError(r *http.Request) (string, error) {
	text, _ := storms[r.FormValue("kind")].last.Load().(string)
	return text, nil
}

// exchange says something over a connection, and ends it in one of several ways.
func exchange(conn net.Conn, turn int) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("a question")); err != nil {
		return err
	}
	tcp, ok := conn.(*net.TCPConn)
	switch {
	case turn%4 == 0 && ok:
		return tcp.SetLinger(0)
	case turn%4 == 1:
		return nil
	case turn%4 == 2 && ok:
		if err := tcp.CloseWrite(); err != nil {
			return err
		}
	}
	_, err := conn.Read(make([]byte, 100))
	return err
}

func dialHost(turn int) error {
	conn, err := net.DialTimeout("tcp", answering.Load().(string), time.Second)
	if err != nil {
		return err
	}
	return exchange(conn, turn)
}

// dialSilent calls where no answer comes, or where one comes after all.
func dialSilent(turn int) error {
	conn, err := net.DialTimeout("tcp", silent.Load().(string), time.Duration(turn%50+1)*time.Millisecond)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return nil
	}
	if err != nil {
		return err
	}
	return conn.Close()
}

// echo says each question back and closes the connection.
func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			_, _ = io.CopyN(conn, conn, int64(len("a question")))
		}()
	}
}

var loopbackPort atomic.Int64

func dialLoopback(turn int) error {
	if loopbackPort.Load() == 0 || turn%100 == 99 { // listeners come and go as well
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go echo(l)
		loopbackPort.Store(int64(l.Addr().(*net.TCPAddr).Port))
		time.AfterFunc(3*time.Second, func() { l.Close() })
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", loopbackPort.Load()), time.Second)
	if err != nil {
		loopbackPort.Store(0)
		return err
	}
	return exchange(conn, turn)
}

// datagrams go over loopback, or to the host, which takes none.
func datagrams(turn int) error {
	if turn%2 == 0 {
		conn, err := net.Dial("udp", answering.Load().(string))
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err = conn.Write([]byte("a datagram")); errors.Is(err, unix.ECONNREFUSED) {
			return nil
		}
		return err
	}
	a, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := net.Dial("udp", a.LocalAddr().String())
	if err != nil {
		return err
	}
	defer b.Close()
	for range 10 {
		if _, err := b.Write([]byte("a datagram")); err != nil {
			return err
		}
	}
	if err := a.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, _, err = a.ReadFrom(make([]byte, 100))
	return err
}

// socketPairs passes the end of a pipe through local sockets, and leaves some of it
// under way.
func socketPairs(turn int) error {
	kind := []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET, unix.SOCK_DGRAM}[turn%3]
	pair, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	for range 3 {
		if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(in.Fd())), nil, 0); err != nil {
			return err
		}
	}
	control := make([]byte, 100)
	_, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), control, 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return nil
}

func processes(turn int) error {
	cmd := exec.Command("/proc/self/exe", "who")
	cmd.Env = []string{}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if turn%3 == 0 {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil
	}
	_, err = io.ReadAll(out)
	return errors.Join(err, cmd.Wait())
}

func files(turn int) error {
	dir, err := os.MkdirTemp("/tmp", "storm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_ALL_EVENTS); err != nil {
		return err
	}
	name := filepath.Join(dir, "a")
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(make([]byte, 4096*(turn%20+1)))
	err = errors.Join(err, os.Rename(name, name+"b"), os.Symlink("a", name+"c"), os.Mkdir(name+"d", 0o700), os.Link(name+"b", filepath.Join(name+"d", "e")))
	if err != nil {
		return err
	}
	if turn%2 == 0 { // its file has no name from here on
		err = errors.Join(os.Remove(name+"b"), os.RemoveAll(name+"d"))
	}
	_, werr := f.WriteAt([]byte("more"), 100)
	locked := unix.Flock(int(f.Fd()), unix.LOCK_EX)
	_, _ = unix.Read(watch, make([]byte, 100))
	return errors.Join(err, werr, locked)
}

func mappings(turn int) error {
	const size = 64 << 10
	flags := []int{unix.MAP_PRIVATE, unix.MAP_SHARED}[turn%2] | unix.MAP_ANON
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for i := 0; i < size; i += 4096 {
		m[i] = byte(turn)
	}
	err = errors.Join(unix.Mprotect(m[:4096], unix.PROT_READ), unix.Madvise(m[8192:16384], unix.MADV_DONTNEED))
	if err == nil && (m[0] != byte(turn) || m[8192] != 0 && turn%2 == 0 || m[size-4096] != byte(turn)) {
		err = fmt.Errorf("memory has another content")
	}
	return errors.Join(err, unix.Munmap(m))
}

// waits waits for a timer, beside a counter and signals that come meanwhile.
func waits(turn int) error {
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(timer)
	soon := unix.NsecToTimespec(int64(time.Duration(turn%5+1) * time.Millisecond))
	if err := unix.TimerfdSettime(timer, 0, &unix.ItimerSpec{Value: soon}, nil); err != nil {
		return err
	}
	counter, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(counter)
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(poll)
	for _, fd := range []int{timer, counter} {
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return err
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGWINCH)
	events := make([]unix.EpollEvent, 2)
	for {
		n, err := unix.EpollWait(poll, events, 2000)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = errors.New("no timer within two seconds")
		}
		return err
	}
}

func terminals(turn int) error {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer ptmx.Close()
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		return err
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer tty.Close()
	if _, err := ptmx.WriteString("a line\n"); err != nil {
		return err
	}
	_, err = tty.Read(make([]byte, 100))
	return err
}
