package oci

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

var awsRegion = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$`)

// ecrPassword exchanges AWS credentials for the password of that account's
// registry, by the ECR API's GetAuthorizationToken.
func ecrPassword(ctx context.Context, client *http.Client, c AWSCredentials, at time.Time) (string, error) {
	if !awsRegion.MatchString(c.Region) {
		return "", cay.Errorf(cay.Invalid, "%q is not an AWS region", c.Region)
	}
	host := "api.ecr." + c.Region + ".amazonaws.com"
	if strings.HasPrefix(c.Region, "cn-") {
		host += ".cn"
	}
	body := []byte("{}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+"/", bytes.NewReader(body))
	if err != nil {
		return "", cay.Wrap(cay.Internal, err, "make a request to ECR")
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	if err := signAWS(ctx, req, body, c, "ecr", at); err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", cay.Wrap(cay.Unavailable, err, "cannot reach AWS for the registry's password")
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return "", cay.Wrap(cay.Unavailable, err, "AWS ended in the middle of its answer")
	}
	if res.StatusCode != http.StatusOK {
		return "", cay.Errorf(cay.Denied, "AWS refuses the credentials of the registry (status %d)", res.StatusCode)
	}
	return ecrToken(text)
}

// ecrToken takes the password out of an answer: base64 of "AWS:<password>".
func ecrToken(text []byte) (string, error) {
	var reply struct {
		AuthorizationData []struct {
			AuthorizationToken string `json:"authorizationToken"`
		} `json:"authorizationData"`
	}
	if err := json.Unmarshal(text, &reply); err != nil || len(reply.AuthorizationData) == 0 {
		return "", cay.Errorf(cay.Unavailable, "AWS gave no password for the registry")
	}
	pair, err := base64.StdEncoding.DecodeString(reply.AuthorizationData[0].AuthorizationToken)
	_, password, ok := strings.Cut(string(pair), ":")
	if err != nil || !ok {
		return "", cay.Errorf(cay.Unavailable, "AWS gave an unreadable password for the registry")
	}
	return password, nil
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(fmt.Sprintf("constant URL %q: %v", s, err))
	}
	return u
}
