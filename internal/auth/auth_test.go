package auth_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

func openStore(t *testing.T) *store.SQLite {
	t.Helper()
	return storetest.Open(t, filepath.Join(t.TempDir(), "cay.db"))
}

func TestFirstStartMakesOneKey(t *testing.T) {
	s := openStore(t)
	team, key, err := auth.FirstStart(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(key) {
		t.Errorf("SDKs refuse the key %q", key)
	}
	record, err := auth.New(s).Verify(t.Context(), key)
	if err != nil || record.Team != team.ID {
		t.Errorf("verified as %+v, %v", record, err)
	}
	if len(record.Mask) > 16 || strings.Contains(record.Mask, key[8:20]) {
		t.Errorf("the mask %q tells too much", record.Mask)
	}
	again, none, err := auth.FirstStart(t.Context(), s)
	if err != nil || none != "" || again.ID != team.ID {
		t.Errorf("a second start gave %+v, %q, %v", again, none, err)
	}
}

func TestWrongKeysLookAlike(t *testing.T) {
	s := openStore(t)
	_, key, err := auth.FirstStart(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	last := byte('0')
	if key[len(key)-1] == last {
		last = '1'
	}
	a := auth.New(s)
	var texts []string
	for _, wrong := range []string{"", "e2b_", key[:len(key)-1] + string(last), key + "0", "x" + key, strings.Repeat("z", 44)} {
		_, err := a.Verify(t.Context(), wrong)
		if cay.KindOf(err) != cay.Unauthenticated {
			t.Errorf("%q: %v", wrong, err)
			continue
		}
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		if text != texts[0] {
			t.Errorf("wrong keys can be told apart: %q and %q", text, texts[0])
		}
	}
}

type broken struct{ auth.Store }

func (broken) KeyByHash(context.Context, [32]byte) (cay.APIKey, error) {
	return cay.APIKey{}, cay.Wrap(cay.Unavailable, errors.New("disk"), "the database is busy")
}

func TestIsKey(t *testing.T) {
	_, key, err := auth.FirstStart(t.Context(), openStore(t))
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{
		key: true, "": false, "e2b_": false, key[4:]: false, key + "0": false, key[:len(key)-1] + "g": false,
	} {
		if auth.IsKey(s) != want {
			t.Errorf("IsKey(%q) = %v", s, !want)
		}
	}
}

func TestABrokenStoreIsNoWrongKey(t *testing.T) {
	_, err := auth.New(broken{}).Verify(t.Context(), "e2b_"+strings.Repeat("0", 40))
	if cay.KindOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
}

func TestTokensLastAndDiffer(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got { // a first start that happens many times at once
		wg.Go(func() {
			tokens, err := auth.OpenTokens(dir)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = tokens.Access("ia")
		})
	}
	wg.Wait()
	for _, token := range got {
		if token != got[0] || len(token) != 64 {
			t.Fatalf("the tokens of one sandbox differ: %q", got)
		}
	}
	tokens, err := auth.OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, token := range []string{tokens.Access("ia"), tokens.Traffic("ia"), tokens.Access("ib"), tokens.Traffic("ib")} {
		if seen[token] {
			t.Errorf("two tokens are equal")
		}
		seen[token] = true
	}
	if !tokens.CheckAccess("ia", got[0]) || tokens.CheckAccess("ib", got[0]) ||
		tokens.CheckTraffic("ia", got[0]) || tokens.CheckAccess("ia", "") {
		t.Error("a check is wrong")
	}
	info, err := os.Stat(filepath.Join(dir, "secret.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("secret.key: %v, %v", info, err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left over: %v", list)
	}
}

func TestADamagedSecretIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret.key"), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := auth.OpenTokens(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
}
