package rest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// The reason that everything fails is looked for before a caller is told.
func TestErrorsAreExplained(t *testing.T) {
	h := New(Config{Explain: func(error) error {
		return cay.Errorf(cay.Internal, "the disk is gone").WithCode("storage_down").WithHint("mount it")
	}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/nothing", nil))
	for _, say := range []string{`"error_code":"storage_down"`, "the disk is gone; mount it"} {
		if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), say) {
			t.Errorf("the answer is %d %s", w.Code, w.Body)
		}
	}
}
