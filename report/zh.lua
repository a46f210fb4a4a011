-- After the article: its summary in Chinese, beside it, as one file.
local quarto = (os.getenv("QUARTO_BIN_PATH") or "") .. "/quarto"
local function run(command)
  if not os.execute(command) then error("failed: " .. command) end
end
run("cp zh.ipynb references.bib _zh/")
run(string.format("'%s' render _zh/zh.ipynb --to html", quarto))
run("mv _zh/zh.html _manuscript/zh.html && rm _zh/zh.ipynb _zh/references.bib")
