package tty

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pty makes a terminal and returns the end that a program gets.
func pty(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave
}

func terminalModes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	is, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *is
}

// A panic, in whatever goroutine, leaves the terminal as it was. The test runs
// itself again, since a panic is a program's end.
func TestTerminalAfterPanic(t *testing.T) {
	if os.Getenv("CAY_TEST_PANIC") != "" {
		raw, err := MakeRaw(os.Stdin)
		if err != nil {
			t.Fatal(err)
		}
		if terminalModes(t, os.Stdin).Lflag&unix.ICANON != 0 {
			t.Fatal("the terminal is not raw")
		}
		raw.Background(func() { panic("broken on purpose") })
		time.Sleep(time.Minute)
		return
	}
	terminal := pty(t)
	before := terminalModes(t, terminal)
	cmd := exec.Command(os.Args[0], "-test.run=^TestTerminalAfterPanic$")
	cmd.Env = append(os.Environ(), "CAY_TEST_PANIC=1")
	cmd.Stdin = terminal
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "broken on purpose") {
		t.Fatalf("it ended with %v: %s", err, out)
	}
	if after := terminalModes(t, terminal); after != before {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}
