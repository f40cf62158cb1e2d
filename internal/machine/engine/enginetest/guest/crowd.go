package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// crowdAnswers are those of main that are about many processes.
var crowdAnswers = map[string]func(*http.Request) (string, error){
	"/crowd":        crowd,
	"/crowd-states": crowdStates,
	"/crowd-stood":  func(*http.Request) (string, error) { return strconv.FormatInt(stood.Load(), 10), nil },
	"/crowd-began":  func(*http.Request) (string, error) { return strconv.FormatInt(began.Load(), 10), nil },
	"/crowd-goes":   func(*http.Request) (string, error) { lets.Store(true); return "", goOn() },
}

var (
	crowded []int        // the processes of crowd
	began   atomic.Int64 // counts the programs that this process began and that ended
	lets    atomic.Bool  // this process lets those go on that stand still
	stood   atomic.Int64 // counts how often the engine said that processes stand still
)

func crowdStands() {
	stood.Add(1)
	if lets.Load() {
		_ = goOn()
	}
}

func goOn() error { return syscall.Kill(-1, syscall.SIGCONT) }

// crowd forks processes that sleep, and begins one program after the other from
// then on if asked.
func crowd(r *http.Request) (string, error) {
	for range number(r, "processes") {
		pid, errno := forkSleeper()
		if errno != 0 {
			return "", errno
		}
		crowded = append(crowded, pid)
	}
	if r.FormValue("begins") != "" {
		go func() {
			for ; ; began.Add(1) {
				if text, err := exec.Command("/proc/self/exe", "who").CombinedOutput(); err != nil {
					fmt.Fprintf(os.Stderr, "program %d: %v: %s\n", began.Load(), err, text)
					os.Exit(1)
				}
			}
		}()
	}
	return "", nil
}

//go:nosplit
//go:norace
func forkSleeper() (int, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	for errno == 0 && pid == 0 {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	return int(pid), errno
}

// crowdStates are the letters of the crowd's states.
func crowdStates(*http.Request) (string, error) {
	var letters strings.Builder
	for _, pid := range crowded {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return "", err
		}
		letters.WriteByte(text[strings.LastIndexByte(string(text), ')')+2])
	}
	return letters.String(), nil
}
