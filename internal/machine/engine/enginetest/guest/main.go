// Command guest is PID 1 of the conformance suite's sandboxes: a small HTTP
// server that looks at the sandbox from inside, as the suite asks it to.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// when is a time that no clock shows.
var when = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

var (
	count   atomic.Int64
	ballast [][]byte
)

func main() {
	if do := act(os.Args); do != nil {
		if err := do(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	onSignal(syscall.SIGWINCH, func() { woken.Add(1) })
	onSignal(syscall.SIGUSR1, crowdStands)
	answers := map[string]func(*http.Request) (string, error){
		"/health":  func(*http.Request) (string, error) { return "ok", nil },
		"/count":   func(*http.Request) (string, error) { return strconv.FormatInt(count.Add(1), 10), nil },
		"/host":    func(*http.Request) (string, error) { return os.Hostname() },
		"/write":   write,
		"/read":    func(r *http.Request) (string, error) { return read(r.FormValue("path")) },
		"/remove":  func(r *http.Request) (string, error) { return "", os.RemoveAll(r.FormValue("path")) },
		"/mkdir":   func(r *http.Request) (string, error) { return "", os.Mkdir(r.FormValue("path"), 0o755) },
		"/elevate": elevate,
		"/fill":    fill,
		"/reserve": reserve,
		"/eat":     eat,
		"/mount":   mount,
		"/bind":    bind,
		"/unbind":  unbind,
		"/lock":    lock,
		"/holder":  holder,
		"/ranges":  manyRanges,
		"/await":   awaitWord,
		"/set":     setWord,
		"/waiter":  killedWaiter,
		"/close":   func(r *http.Request) (string, error) { return "", letGo(r.FormValue("path")) },
		"/alone":   alone,
		"/stat":    modeAndSize,
		"/rename":  move,
		"/link":    link,
		"/symlink": func(r *http.Request) (string, error) { return "", os.Symlink(r.FormValue("text"), r.FormValue("path")) },
		"/target":  func(r *http.Request) (string, error) { return os.Readlink(r.FormValue("path")) },
		"/unlink":  unlink,
		"/chmod":   chmod,
		"/opens":   opens,
		"/keep":    keep,
		"/kept":    kept,
		"/dial":    dial,
		"/exit":    exit,
		"/shape":   shape,
		"/tree":    tree,
		"/perform": perform,
		"/run":     run,
		"/begin":   begin,
		"/tell":    tell,
		"/room":    room,
		"/sum":     sum,
		"/churn":   churn,
		"/remap":   remap,
		"/left":    left,
		"/woken":   func(*http.Request) (string, error) { return strconv.FormatInt(woken.Load(), 10), nil },
		"/boot-id": func(*http.Request) (string, error) { return read("/proc/sys/kernel/random/boot_id") },
	}
	maps.Copy(answers, memoryAnswers)
	maps.Copy(answers, crowdAnswers)
	maps.Copy(answers, stormAnswers)
	for path, answer := range answers {
		http.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			text, err := answer(r)
			if err != nil {
				w.WriteHeader(http.StatusConflict)
				text = err.Error()
			}
			_, _ = io.WriteString(w, text)
		})
	}
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

func write(r *http.Request) (string, error) {
	return "", os.WriteFile(r.FormValue("path"), []byte(r.FormValue("text")), 0o640)
}

func read(path string) (string, error) {
	text, err := os.ReadFile(path)
	return string(text), err
}

// fill writes megabytes to a file until it is done or an error comes.
func fill(r *http.Request) (string, error) {
	f, err := os.Create(r.FormValue("path"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	for n := range number(r, "mb") {
		if _, err := f.Write(block); err != nil {
			return "", fmt.Errorf("after %d MB: %w", n, err)
		}
	}
	return "", f.Sync()
}

// reserve takes room on the disk for a file, and writes nothing to it.
func reserve(r *http.Request) (string, error) {
	f, err := os.Create(r.FormValue("path"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	return "", syscall.Fallocate(int(f.Fd()), 0, 0, int64(number(r, "mb"))<<20)
}

// eat holds megabytes of memory for good.
func eat(r *http.Request) (string, error) {
	for range number(r, "mb") {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			binary.LittleEndian.PutUint64(block[i:], uint64(len(ballast)<<20+i+1))
		}
		ballast = append(ballast, block)
	}
	return "", nil
}

// elevate starts a program as user 1000 and returns the user it became.
func elevate(r *http.Request) (string, error) {
	cmd := exec.Command(r.FormValue("path"), "who")
	cmd.SysProcAttr = user
	text, err := cmd.Output()
	return string(text), err
}

// mount tries what a sandbox's root must not be able to do.
func mount(r *http.Request) (string, error) {
	return "", syscall.Mount("tmpfs", r.FormValue("path"), "tmpfs", 0, "")
}

func dial(r *http.Request) (string, error) {
	conn, err := net.DialTimeout("tcp", r.FormValue("addr"), 20*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text, err := io.ReadAll(io.LimitReader(conn, 100))
	return string(text), err
}

// exit ends PID 1, a moment after it has answered.
func exit(r *http.Request) (string, error) {
	time.AfterFunc(50*time.Millisecond, func() { os.Exit(number(r, "code")) })
	return "", nil
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.FormValue(name))
	return n
}
