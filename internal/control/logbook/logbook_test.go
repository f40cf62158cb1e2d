package logbook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func line(text string) Line {
	return Line{At: time.UnixMilli(1_700_000_000_000).UTC(), Level: "info", Logger: "t", Message: text, Seq: 7}
}

func TestKeepsLines(t *testing.T) {
	b, err := Open(filepath.Join(t.TempDir(), "logs"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Read("i1"); err != nil || len(got) != 0 {
		t.Errorf("nothing is %v, %v", got, err)
	}
	for _, text := range []string{"a", "b\n\"ü"} {
		if err := b.Append("i1", line(text)); err != nil {
			t.Fatal(err)
		}
	}
	f, _ := os.OpenFile(b.path("i1"), os.O_WRONLY|os.O_APPEND, 0)
	f.WriteString(`{"message":"cut o`)
	f.Close()
	if err := b.Append("i1", line("c")); err != nil {
		t.Fatal(err)
	}
	got, err := b.Read("i1")
	if err != nil || len(got) != 3 || got[1].Message != "b\n\"ü" || got[2].Message != "c" || !got[0].At.Equal(line("").At) || got[0].Seq != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, id := range []cay.SandboxID{"../x", "", "a/b"} {
		if got, err := b.Read(id); err != nil || got != nil {
			t.Errorf("%q: %v, %v", id, got, err)
		}
	}
}

func TestIsBounded(t *testing.T) {
	b, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		batch := make([]Line, 100)
		for j := range batch {
			batch[j] = line(strings.Repeat("x", 400))
			batch[j].Seq = int64(i*100 + j + 1)
		}
		if err := b.Append("i1", batch...); err != nil {
			t.Fatal(err)
		}
	}
	size := int64(0)
	for _, name := range []string{b.path("i1"), b.path("i1") + older} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	got, err := b.Read("i1")
	if err != nil || size > 2*maxFile+100_000 || got[len(got)-1].Seq != 4000 {
		t.Errorf("%d bytes, %d lines, %v", size, len(got), err)
	}
	for i := 1; i < len(got); i++ {
		if got[i].Seq != got[i-1].Seq+1 {
			t.Fatalf("%d comes after %d", got[i].Seq, got[i-1].Seq)
		}
	}
}

func TestPrune(t *testing.T) {
	b, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for id, age := range map[cay.SandboxID]time.Duration{"old": 2 * time.Hour, "alive": 2 * time.Hour, "new": 0} {
		if err := b.Append(id, line("x")); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(b.path(id), now.Add(-age), now.Add(-age))
	}
	if err := b.Prune(now.Add(-time.Hour), func(id cay.SandboxID) bool { return id == "alive" }); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[cay.SandboxID]int{"old": 0, "alive": 1, "new": 1} {
		if got, err := b.Read(id); err != nil || len(got) != want {
			t.Errorf("%s has %d lines, %v", id, len(got), err)
		}
	}
}

func TestLogsByChange(t *testing.T) {
	b, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	for id, age := range map[cay.SandboxID]time.Duration{"first": 3 * time.Hour, "third": time.Hour, "second": 2 * time.Hour} {
		if err := b.Append(id, line("x")); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(b.path(id), now.Add(-age), now.Add(-age))
	}
	// The older file of one does not make another of it.
	if err := os.WriteFile(b.path("second")+older, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Chtimes(b.path("second")+older, now.Add(-4*time.Hour), now.Add(-4*time.Hour))
	got, err := b.Logs()
	if err != nil || len(got) != 3 || got[0].Sandbox != "third" || got[1].Sandbox != "second" || got[2].Sandbox != "first" ||
		got[1].Size < 1000 || !got[1].Changed.Equal(now.Add(-2*time.Hour)) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := (*Book)(nil).Logs(); err != nil || got != nil {
		t.Errorf("of none: %v, %v", got, err)
	}
}

// A log that comes from another machine is put into what is here, each line once and in
// the order of time.
func TestUnpack(t *testing.T) {
	here, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	there, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(s int, text, epoch string) Line {
		return Line{At: time.Unix(1_700_000_000+int64(s), 0).UTC(), Level: "info", Message: text, Epoch: epoch, Seq: int64(s)}
	}
	said := func(b *Book) (out string) {
		t.Helper()
		lines, err := b.Read("i1")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			out += l.Message
		}
		return out
	}
	move := func(from, to *Book) {
		t.Helper()
		packed, err := from.Pack("i1")
		if err == nil {
			err = to.Unpack("i1", packed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	move(here, there) // of nothing
	for _, l := range []Line{at(1, "a", "x"), at(2, "b", "x"), at(2, "l", "")} {
		if err := here.Append("i1", l); err != nil {
			t.Fatal(err)
		}
	}
	move(here, there)
	if err := there.Append("i1", at(3, "c", "y")); err != nil {
		t.Fatal(err)
	}
	move(there, here)
	move(there, here)
	if err := here.Append("i1", at(4, "d", "y")); err != nil {
		t.Fatal(err)
	}
	if said(there) != "ablc" || said(here) != "ablcd" {
		t.Errorf("%q there, %q here", said(there), said(here))
	}
	if err := here.Unpack("i1", []byte("{\"message\":\"cut o\nno line\n{\"message\":\"late\",\"at\":\"2100-01-01T00:00:00Z\"}\n{\"mess")); err != nil || said(here) != "ablcdlate" {
		t.Errorf("after what is damaged: %q, %v", said(here), err)
	}
	for i := range 30 {
		var batch []Line
		for j := range 100 {
			batch = append(batch, at(10+100*i+j, strings.Repeat("x", 400), "y"))
		}
		if err := there.Append("i1", batch...); err != nil {
			t.Fatal(err)
		}
	}
	move(there, here)
	packed, err := here.Pack("i1")
	if err != nil || len(packed) > MaxLog {
		t.Errorf("%d bytes, %v", len(packed), err)
	}
	if lines, err := here.Read("i1"); err != nil || lines[len(lines)-1].Message != "late" || len(lines) < 1000 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
	if err := (*Book)(nil).Unpack("i1", packed); err != nil {
		t.Error(err)
	}
}
