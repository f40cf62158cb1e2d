package agent

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/guest"
)

func TestDiaryPages(t *testing.T) {
	var d diary
	d.begin()
	first := d.epoch
	long := strings.Repeat("ü", 5000)
	for range 5000 {
		d.note("", "info", "test", long, "a", long, "b", long)
	}
	var after, seen int64
	for pages := 1; ; pages++ {
		page := d.page(after)
		text, err := json.Marshal(page)
		if err != nil || len(text) > guest.DiaryReply || len(page.Entries) > guest.DiaryPage {
			t.Fatalf("a page of %d entries in %d bytes, %v", len(page.Entries), len(text), err)
		}
		for _, e := range page.Entries {
			if after != 0 && e.Seq != after+1 {
				t.Fatalf("%d comes after %d", e.Seq, after)
			}
			after = e.Seq
			seen++
		}
		if !page.More {
			if pages < 2 {
				t.Error("all on one page")
			}
			break
		}
	}
	if after != 5000 || seen < diaryKeeps/2 || seen > diaryKeeps {
		t.Errorf("%d entries up to %d", seen, after)
	}
	d.begin()
	if page := d.page(0); page.Epoch == first || len(page.Entries) != 0 {
		t.Errorf("a new diary is %+v", page)
	}
}

func TestDiaryHasWarnings(t *testing.T) {
	a := New(Config{Log: slog.New(slog.DiscardHandler)})
	defer a.Close()
	a.log.Info("nothing")
	a.log.With("x", 1).Warn("careful")
	a.log.Error("broken", "err", errors.New("disk"), "stack", "long")
	for query, status := range map[string]int{"?after=0": 200, "": 400, "?after=x": 400} {
		r := httptest.NewRecorder()
		a.Handler().ServeHTTP(r, httptest.NewRequest("GET", guest.DiaryPath+query, nil))
		if r.Code != status {
			t.Errorf("%s: %d", query, r.Code)
		}
		if status != 200 {
			continue
		}
		var page guest.Diary
		if err := json.Unmarshal(r.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) != 2 || page.Entries[0].Level != "warn" || page.Entries[1].Level != "error" ||
			page.Entries[0].Fields["x"] != "1" ||
			page.Entries[1].Fields["err"] != "disk" || page.Entries[1].Fields["stack"] != "" {
			t.Errorf("got %+v", page.Entries)
		}
	}
}
