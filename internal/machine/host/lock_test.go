package host

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/cay-run/cay"
)

// holdVariable makes this test binary hold the lock of a directory until it
// gets SIGTERM: the kernel's locks are per process.
const holdVariable = "CAY_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVariable); dir != "" {
		hold(dir)
		return
	}
	os.Exit(m.Run())
}

func hold(dir string) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	lock, err := takeLock(dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	<-stop
	lock.Close()
}

func holderProcess(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdVariable+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	return cmd
}

func TestOneServerADirectory(t *testing.T) {
	dir := t.TempDir()
	other := holderProcess(t, dir)
	_, err := takeLock(dir)
	if cay.KindOf(err) != cay.Conflict || !strings.Contains(err.Error(), fmt.Sprintf("process %d", other.Process.Pid)) {
		t.Errorf("takeLock = %v, want Conflict with process %d", err, other.Process.Pid)
	}
	text, err := os.ReadFile(dir + "/" + lockFile)
	if string(text) != fmt.Sprintln(other.Process.Pid) || err != nil {
		t.Errorf("the lock file says %q, %v", text, err)
	}

	other.Process.Kill() // the kernel drops the lock of a crashed server
	other.Wait()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

func TestStopHolder(t *testing.T) {
	dir := t.TempDir()
	if err := Stop(t.Context(), dir); err != nil {
		t.Errorf("without a lock file: %v", err)
	}
	other := holderProcess(t, dir)
	if err := Stop(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("the server ended with %v, not by itself", err)
	}
	if err := Stop(t.Context(), dir); err != nil {
		t.Errorf("without a server: %v", err)
	}
}
