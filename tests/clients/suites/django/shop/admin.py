from django.contrib import admin

from .models import Author, Book, Tag


@admin.register(Book)
class BookAdmin(admin.ModelAdmin):
    list_display = ["title", "author", "price"]
    list_filter = ["author"]
    search_fields = ["title"]
    date_hierarchy = "added"


admin.site.register([Author, Tag])
